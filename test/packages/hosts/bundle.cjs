// The entry of the bundles: the library, and the server with a key.
const { Engine } = require('capstan');
const { createHandler } = require('capstan/server');

(async () => {
  const engine = await Engine.load('demo');
  const messages = [{ role: 'user', content: 'What is Capstan?' }];
  const { choices } = await engine.chat(messages, { temperature: 0 }).result();
  console.log(choices[0].text);
  const handler = await createHandler({ engine, keysDb: process.argv[2] });
  const body = JSON.stringify({ model: 'demo', messages });
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${process.env.KEY}` };
  const response = await handler(
    new Request('http://localhost/v1/chat/completions', { method: 'POST', headers, body }),
  );
  console.log(response.status);
  if (response.status !== 200 || choices[0].text === '') process.exitCode = 1;
  await handler.close();
  await engine.close();
})();
