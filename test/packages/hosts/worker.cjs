// Runs an engine in each of two worker threads, ends one in the middle of a request, and starts another in its place.
const { once } = require('node:events');
const { isMainThread, parentPort, Worker, workerData } = require('node:worker_threads');
const { Engine } = require('capstan');

async function work() {
  const engine = await Engine.load('demo', { threads: 1 });
  parentPort.postMessage('loaded');
  const isLong = workerData === 'long';
  const options = isLong ? { temperature: 1, ignoreEos: true, maxTokens: 1500 } : { temperature: 0 };
  const { choices } = await engine.chat([{ role: 'user', content: 'What is Capstan?' }], options).result();
  parentPort.postMessage(choices[0].text);
  await engine.close();
}

async function run(kind) {
  const worker = new Worker(__filename, { workerData: kind });
  const [loaded] = await once(worker, 'message');
  if (loaded !== 'loaded') throw new Error(`expected "loaded", got ${loaded}`);
  return { worker, text: once(worker, 'message').then(([text]) => text) };
}

async function main() {
  // A promise that never settles would end the process with status 0.
  process.exitCode = 1;
  const [short, long] = await Promise.all([run('short'), run('long')]);
  const text = await short.text;
  await long.worker.terminate();
  const again = await run('short');
  const textAgain = await again.text;
  if (text === '' || textAgain !== text) throw new Error(`expected ${text}, got ${textAgain}`);
  console.log(text);
  process.exitCode = 0;
}

void (isMainThread ? main() : work());
