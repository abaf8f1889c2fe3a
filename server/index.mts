// The entry for `import`. It shares one copy of everything with `require`.
export { createHandler, createServer } from './index.js';
export type * from './index.js';
