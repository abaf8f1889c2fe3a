// A server process for benchmarks/server.ts: the complete server, with a text source instead of the engine.
//   node -r ./test/oracle/register-ts.cjs benchmarks/server-side.ts uws|node TOKENS
// Prints its port. GET /cpu returns its CPU time in milliseconds.
import { App } from '../server/inference/app';
import { createTransport } from '../server/http/create-transport';
import { createLog } from '../server/base/log';
import { Engine } from '../ts';
import { tinyModel } from '../test/fakes/tiny-model';

const [transportName, numTokens] = [process.argv[2] as 'uws' | 'node', Number(process.argv[3])];
process.env.CAPSTAN_ADDON = require.resolve('./text-source-addon');
process.env.TEXT_SOURCE_TOKENS = String(numTokens);

void (async () => {
  const engine = await Engine.load(tinyModel(), { maxNumSeqs: 256 });
  const app = new App({
    servedNames: ['m'],
    healthStallTimeoutMs: 30_000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: createLog('error'),
    routes: [
      {
        method: 'GET',
        path: '/cpu',
        handle: (_context, _request, reply) => {
          const { user, system } = process.cpuUsage();
          reply.send(200, { 'Content-Type': 'application/json' }, JSON.stringify({ ms: (user + system) / 1000 }));
        },
      },
    ],
  });
  app.serve(engine);
  const transport = await createTransport(transportName, {
    handler: (request, reply) => app.handle(request, reply),
    maxBodyBytes: 1 << 20,
    bodyTimeoutMs: 60_000,
  });
  process.stdout.write(`${await transport.listen('127.0.0.1', 0)}\n`);
})();
