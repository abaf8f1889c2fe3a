/** A short campaign with fixed seeds as a test, over both transports. */
import { killAll, prepare, type Running, startServer, TRANSPORTS } from '../fakes/server-process';
import { findResidue, runCampaign } from './campaign';
import { exchange } from './exchange';
import { REGRESSIONS } from './regressions';

/** @param serve The model and whether it runs on the fake addon. */
export function describeFuzzing(serve: { model: () => string; isFake: boolean }, numRequests: number): void {
  describe.each(TRANSPORTS)('over %s', (transport) => {
    let server: Running & { url: string };
    const isAlive = () => server.process.exitCode === null && server.process.signalCode === null;
    const target = () => ({ port: Number(new URL(server.url).port), transport, timeoutMs: 100_000 });

    beforeAll(async () => {
      const fakeAddon = prepare();
      server = await startServer(
        [serve.model(), '--http-transport', transport, '--log-level', 'error'],
        serve.isFake ? fakeAddon : {},
      );
    });
    afterAll(killAll);

    test.each(Object.keys(REGRESSIONS))('%s', async (name) => {
      expect(await exchange(target(), REGRESSIONS[name], 1)).not.toHaveProperty('fault', expect.anything());
    });

    test(`${numRequests} random requests get correct responses and leave nothing behind`, async () => {
      // NOTE: no bare CR in a header among these seeds: uWebSockets.js 20.30 answers it by a timeout of 10 s.
      const seeds = Array.from({ length: numRequests }, (_, i) => 78_000_000 + i);
      const { findings, statuses } = await runCampaign({ ...target(), seeds, width: 8, isAlive });
      expect(findings).toEqual([]);
      expect(isAlive()).toBe(true);
      // The campaign covers successes and errors.
      for (const status of [200, 400, 404, 405]) expect(statuses[status]).toBeGreaterThan(0);
      expect(await findResidue(server.url, 100_000)).toBeUndefined();
      expect(server.output().stderr).toBe('');
    }, 900_000);
  });
}
