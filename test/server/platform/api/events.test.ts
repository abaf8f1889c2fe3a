/** The event streams of the management API, read by its own client over HTTP. */
import { NodeTransport } from '../../../../server/http/node';
import { Api } from '../../../../server/platform/api/api';
import { ApiFailure, Client, type ServerEvent } from '../../../../server/platform/api/client';
import { apiRoutes } from '../../../../server/platform/api/routes';
import { type Person, Service } from './support';

let service: Service;
let owner: Person;
let transport: NodeTransport;
let url: string;
let deploymentId: string;
const listeners = new Set<(id: string) => void>();
/** The part of the controller that the streams use. */
const controller = {
  onChange(listener: (id: string) => void) {
    listeners.add(listener);
    return () => void listeners.delete(listener);
  },
  reconcile: () => {},
};
const changed = (id: string) => {
  for (const listener of listeners) listener(id);
};

beforeEach(async () => {
  service = await Service.open();
  const api = new Api({ routes: apiRoutes(), context: { ...service.context, controller } as never });
  transport = new NodeTransport({
    maxBodyBytes: 1 << 20,
    bodyTimeoutMs: 10_000,
    handler: (request, reply) => api.handle(request, reply),
  });
  url = `http://127.0.0.1:${await transport.listen('127.0.0.1', 0)}`;
  owner = await service.person('owner@example.com');
  deploymentId = (await owner.post('/api/v1/deployments', { name: 'chat' })).body.id;
});
afterEach(async () => {
  await transport.close();
  await service.close();
});

async function clientOf(person: Person): Promise<Client> {
  const { body } = await person.post('/api/v1/tokens', { name: 'follower', rights: 'read' });
  return new Client({ url, token: body.token });
}

const nextOf = async (stream: AsyncGenerator<ServerEvent>): Promise<ServerEvent> =>
  ((await stream.next()) as IteratorYieldResult<ServerEvent>).value;

async function untilFollowers(number: number): Promise<void> {
  while (listeners.size !== number) await new Promise((resolve) => setTimeout(resolve, 5));
}

test('the events of a deployment arrive as they happen, and the stream ends with its reader', async () => {
  const client = await clientOf(owner);
  const stream = client.deployments.followEvents(deploymentId);
  const next = nextOf(stream);
  await untilFollowers(1);
  await owner.post(`/api/v1/deployments/${deploymentId}/stop`);
  changed('dep_another');
  changed(deploymentId);
  const { id, data } = await next;
  const listed = (await client.deployments.events(deploymentId)).find(({ seq }) => seq === Number(id));
  expect(JSON.parse(data)).toEqual({ ...listed, type: 'deployment.stop' });
  await stream.return(undefined);
  await untilFollowers(0);
});

test('a stream continues after Last-Event-ID, and starts with the next event if that is no number', async () => {
  const client = await clientOf(owner);
  const firstEventAfter = async (lastEventId: string): Promise<number> => {
    const { body } = await owner.post('/api/v1/tokens', { name: `from ${lastEventId}`, rights: 'read' });
    const response = await fetch(`${url}/api/v1/deployments/${deploymentId}/events/stream`, {
      headers: { authorization: `Bearer ${body.token}`, 'last-event-id': lastEventId },
    });
    let text = '';
    for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
      text += piece;
      if (/^id: \d+\n/m.test(text)) break;
    }
    return Number(/^id: (\d+)$/m.exec(text)?.[1]);
  };
  const seqs = async () => (await client.deployments.events(deploymentId)).map(({ seq }) => seq).reverse();
  await owner.post(`/api/v1/deployments/${deploymentId}/stop`);
  const before = await seqs();
  expect(await firstEventAfter('0')).toBe(before[0]);
  expect(await firstEventAfter(String(before[0]))).toBe(before[1]);
  await untilFollowers(0);
  const invalid = firstEventAfter('-1');
  await untilFollowers(1);
  await owner.post(`/api/v1/deployments/${deploymentId}/start`);
  changed(deploymentId);
  expect(await invalid).toBe((await seqs())[before.length]);
});

test('strangers get no stream, and hear of no changes of others', async () => {
  const stranger = await service.person('stranger@example.com');
  const client = await clientOf(stranger);
  await expect(client.deployments.followEvents(deploymentId).next()).rejects.toMatchObject({
    name: 'ApiFailure',
    status: 404,
  });
  const { body: own } = await stranger.post('/api/v1/deployments', { name: 'own' });
  const stream = client.stream('GET', '/events/stream');
  const next = nextOf(stream);
  await untilFollowers(1);
  changed(deploymentId);
  changed('con_missing');
  changed(own.id);
  expect(JSON.parse((await next).data)).toEqual({ type: 'changed', target_id: own.id });
  await stream.return(undefined);
});

test('a stream ends once its deployment is gone', async () => {
  const client = await clientOf(owner);
  const stream = client.deployments.followEvents(deploymentId);
  const rest = (async () => {
    for await (const event of stream) void event;
  })();
  await untilFollowers(1);
  jest.spyOn(service.context.store, 'readDeploymentEvents').mockRejectedValue(new Error('object not found'));
  changed(deploymentId);
  await expect(rest).rejects.toBeInstanceOf(ApiFailure);
});

test('limits the streams that one user follows at once, and counts down when they end', async () => {
  const { body } = await owner.post('/api/v1/tokens', { name: 'follower', rights: 'read' });
  const leaving = new AbortController();
  const follow = (path: string, signal?: AbortSignal): Promise<Response> =>
    fetch(`${url}/api/v1${path}`, { headers: { authorization: `Bearer ${body.token}` }, signal: signal ?? null });
  const paths = ['/events/stream', `/deployments/${deploymentId}/events/stream`];
  await Promise.all(Array.from({ length: 100 }, (_, i) => follow(paths[i % 2], leaving.signal)));
  for (const path of paths) {
    const refused = await follow(path);
    expect([refused.status, ((await refused.json()) as { code: string }).code]).toEqual([429, 'too_many_attempts']);
  }
  leaving.abort();
  await untilFollowers(0);
  const next = new AbortController();
  expect((await follow(paths[0], next.signal)).status).toBe(200);
  next.abort();
  await untilFollowers(0);
});
