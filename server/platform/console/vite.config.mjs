import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));

/** Vite compiles JSX without a plugin. No asset is inlined, because the content security policy forbids it. */
export default {
  root: here,
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: `${here}../../../dist/server/platform/console`,
    emptyOutDir: true,
    target: 'es2022',
    // The first versions with light-dark(), which therefore is not rewritten.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '/api': process.env.CAPSTAN_URL ?? 'http://127.0.0.1:8090' } },
};
