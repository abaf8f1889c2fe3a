/** Downloads of files whose client stops reading, or whose key is disabled meanwhile. */
import { connect, type Socket } from 'node:net';
import type { Access } from '../../../../server/access';
import { BACKENDS, LAB } from '../../access/support';
import { upload } from '../../inference/batches/support';
import { closeAll, until } from '../gateway/support';
import {
  type BuiltinReplica,
  type Kept,
  type KeptSetup,
  openTenants,
  type OwnerKey,
  slugOf,
  startKept,
} from './support';
import type { Tenant } from './support';

/** No request of these tests reaches a replica. */
const NO_REPLICA: BuiltinReplica = { port: 1, bodies: [], close: () => Promise.resolve() };
/** More than the buffers of a connection hold. */
const LONG = 'x'.repeat(32 << 20);

let access: Access;
let tenants: Record<OwnerKey, Tenant>;
let kept: Kept;
const sockets: Socket[] = [];
/** The gateway calls it at the end of each request. */
const hasEnded = jest.fn();

beforeAll(async () => {
  ({ access, tenants } = await openTenants(await BACKENDS[0].make()));
});
afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await kept.close();
  await closeAll();
});
afterAll(async () => {
  await access.close();
  await BACKENDS[0].dispose();
});

/** Begins a download, and reads nothing of it. */
async function stall(key: string, path: string, options: KeptSetup['options'] = {}): Promise<void> {
  const log = { debug: hasEnded, info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  kept = await startKept({
    access,
    tenants,
    replica: NO_REPLICA,
    options,
    gateway: { transport: 'node', log: log as never },
  });
  const { id } = await upload(kept.client('lab'), [LONG]);
  hasEnded.mockClear();
  const socket = connect(kept.port, '127.0.0.1').pause();
  sockets.push(socket);
  socket.write(
    `GET ${path}/v1/files/${id}/content HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${key}\r\n\r\n`,
  );
}

test.each(['', `/d/${slugOf('lab', 'chat')}`])('a download ends when its key is disabled: %j', async (path) => {
  const { key, secret } = await access.createKey({ owner: LAB, name: 'short', type: 'user-level' });
  await stall(secret, path);
  await until(() => kept.gateway.numOpenRequests === 1, 'the download');
  expect(hasEnded).not.toHaveBeenCalled();
  await access.setKeyEnabled(key.id, false);
  await until(() => hasEnded.mock.calls.length === 1, 'the end of the download');
});

test('a download ends when its client stops reading', async () => {
  await stall(tenants.lab.key, '', { slowClientTimeoutMs: 1 });
  await until(() => hasEnded.mock.calls.length === 1, 'the end of the download');
});
