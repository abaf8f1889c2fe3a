// A model in a worker thread, so that the main thread does nothing else: node examples/worker.mjs
import { once } from 'node:events';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { Engine } from 'capstan';

if (isMainThread) {
  const worker = new Worker(new URL(import.meta.url));
  for (const question of ['What is Capstan?', 'Count from 1 to 5.']) {
    worker.postMessage(question);
    const [answer] = await once(worker, 'message');
    console.log(answer);
  }
  worker.postMessage(null);
} else {
  const engine = await Engine.load(process.env.MODEL ?? 'demo');
  parentPort.on('message', async (question) => {
    if (question === null) {
      await engine.close();
      return parentPort.close();
    }
    parentPort.postMessage(await engine.chat([{ role: 'user', content: question }], { temperature: 0 }).text());
  });
}
