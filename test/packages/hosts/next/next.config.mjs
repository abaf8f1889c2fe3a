export default { serverExternalPackages: ['capstan'] };
