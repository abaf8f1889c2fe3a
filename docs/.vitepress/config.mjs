import { defineConfig } from 'vitepress';
import { sidebar } from './pages.mjs';

export default defineConfig({
  title: 'Capstan',
  description: 'Language models in Node.js: a library, an OpenAI-compatible server, and a deployment service',
  srcDir: '../build/site/pages',
  outDir: '../build/site/html',
  cacheDir: '../build/site/cache',
  cleanUrls: false,
  markdown: {
    // As GitHub does it: the pages are read there too.
    anchor: {
      slugify: (title) =>
        title
          .toLowerCase()
          .replace(/[^\p{L}\p{N}_\- ]/gu, '')
          .replaceAll(' ', '-'),
    },
  },
  themeConfig: {
    search: { provider: 'local' },
    nav: [
      { text: 'Start', link: '/getting-started' },
      { text: 'Guides', link: '/overview' },
      { text: 'API', link: '/api/' },
      { text: 'Benchmarks', link: '/benchmarks' },
    ],
    sidebar: sidebar(),
    outline: [2, 3],
    footer: { message: 'MIT licence' },
  },
});
