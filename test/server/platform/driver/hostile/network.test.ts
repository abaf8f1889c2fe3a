/** Hostile start scripts at level L2 that look for other replicas, the service and the metadata address of a cloud. */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { newSpec, node } from '../conformance';
import { describeUsers, makeDataDir, newNeighbour, runScripts, type User } from './users';

const METADATA = '169.254.169.254';
/** Prints which of the addresses (`host:port`) answer. */
const probe = (addresses: string[]): string =>
  node(
    `const net = require("net"); for (const at of ${JSON.stringify(addresses)}) { const [, host, port] = /^(.*):(\\d+)$/.exec(at); const s = net.connect({ host, port }); s.on("connect", () => { console.log("reached " + at); s.destroy() }).on("error", (e) => console.log(e.code)) }`,
  );

describeUsers('a start script of $name', (user: User) => {
  let dataDir: string;
  let remove: () => void;
  beforeAll(() => {
    ({ dataDir, remove } = makeDataDir(user));
  });
  afterAll(() => remove());

  test('reaches no listener of the machine, of its network or of a cloud', async () => {
    const listeners = [`127.0.0.1:18080`, `${METADATA}:80`];
    const [result] = await runScripts(
      user,
      { dataDir, hiddenPaths: [], specs: [newSpec({ startCommand: probe([...listeners, '10.0.0.1:53']) })] },
      { addresses: [`${METADATA}/32`], listeners },
    );
    expect(result.lines.sort()).toEqual(['ECONNREFUSED', 'ENETUNREACH', 'ENETUNREACH']);
  });

  test('sees neither the files nor the network of another replica, which keeps serving', async () => {
    const shared = join(dataDir, 'shared');
    mkdirSync(shared);
    for (const [path, mode] of [
      [dataDir, 0o755],
      [shared, 0o755],
    ] as const)
      chmodSync(path, mode);
    writeFileSync(join(shared, 'model'), 'content');
    const inputs = [{ mount: 'input0', path: shared }];
    const script = newSpec({
      inputs,
      startCommand: `ls ${dataDir} /platform; grep -rl words-of-the-neighbour /platform/home /tmp /run /dev/shm; rm -rf /platform/input/input0/* && echo removed; ${probe(['127.0.0.1:80', '10.80.0.1:80'])}`,
    });
    const neighbour = newNeighbour(inputs);
    const [attacked] = await runScripts(user, { dataDir, hiddenPaths: [], neighbour, specs: [script] });
    expect(attacked.lines.filter((line) => !/cannot (access|remove)/.test(line)).sort()).toEqual(
      ['/platform:', 'ECONNREFUSED', 'ECONNREFUSED', 'home', 'input'].sort(),
    );
  });
});
