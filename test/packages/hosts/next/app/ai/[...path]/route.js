import { createHandler } from 'capstan/server';

export const dynamic = 'force-dynamic';

// One engine per process: Next.js evaluates this file again after each change in development.
const load = () => (globalThis.capstanHandler ??= createHandler({ model: 'demo', rootPath: '/ai' }));
const respond = async (request) => (await load())(request);

export { respond as DELETE, respond as GET, respond as OPTIONS, respond as POST };
