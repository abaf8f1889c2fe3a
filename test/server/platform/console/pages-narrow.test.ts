import { testEveryPage } from './every-page';

testEveryPage({ locale: 'zh-CN', theme: 'dark', width: 390, height: 844 });
// Screenshots are taken in both languages and themes at each width.
if (process.env.CONSOLE_PICTURES !== undefined)
  testEveryPage({ locale: 'en', theme: 'light', width: 390, height: 844 });
