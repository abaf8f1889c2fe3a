import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));

/** No plugin: vite compiles JSX itself. Nothing is inlined into the page, for the policy forbids it. */
export default {
  root: here,
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: `${here}../../dist/server/console`,
    emptyOutDir: true,
    target: 'es2022',
    // The first that know light-dark(): it stays as it is written.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '/api': process.env.CAPSTAN_URL ?? 'http://127.0.0.1:8090' } },
};
