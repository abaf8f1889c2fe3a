// The library by `require`.
const { Engine } = require('capstan');

(async () => {
  const engine = await Engine.load('demo');
  const { choices } = await engine.chat([{ role: 'user', content: 'Hello!' }], { temperature: 0 }).result();
  console.log(choices[0].text);
  await engine.close();
  if (choices[0].text === '') process.exitCode = 1;
})();
