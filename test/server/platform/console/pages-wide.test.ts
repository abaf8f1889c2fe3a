import { testEveryPage } from './every-page';

testEveryPage({ locale: 'en', theme: 'light', width: 1280, height: 900 });
// Screenshots are taken in both languages and themes at each width.
if (process.env.CONSOLE_PICTURES !== undefined)
  testEveryPage({ locale: 'zh-CN', theme: 'dark', width: 1280, height: 900 });
