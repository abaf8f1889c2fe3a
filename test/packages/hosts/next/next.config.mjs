export default {
  serverExternalPackages: ['capstan'],
  output: process.env.NEXT_OUTPUT,
  // Next.js copies the files that it finds by `import` and `require`. The engine loads its native files by path.
  outputFileTracingIncludes: { '/ai/**': ['node_modules/capstan/**', 'node_modules/@capstan/**'] },
};
