// The library by `import`.
import { Engine } from 'capstan';

const engine = await Engine.load('demo');
let text = '';
for await (const event of engine.chat([{ role: 'user', content: 'What is Capstan?' }], { temperature: 0 })) {
  if (event.type === 'delta') text += event.textDelta;
}
console.log(text);
await engine.close();
if (text === '') process.exitCode = 1;
