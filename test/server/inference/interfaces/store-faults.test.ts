/** Responses that the store loses, refuses or cannot keep. */
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import type { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { loadTiny, log, serveTiny } from './support';

const HELLO = 'Hello from the fake engine. Größe 😀!';

let engine: Engine;

beforeAll(async () => {
  engine = await loadTiny();
});
beforeEach(() => {
  fake.reset();
  jest.clearAllMocks();
});
afterAll(() => engine.close());

test('a response that is too large for a conversation can still be retrieved', async () => {
  const text = 'x'.repeat(33 * 2 ** 20);
  const id = `resp_${'0'.repeat(48)}`;
  const record = { response: { id, previous_response_id: null, output: [], text }, input: [], messages: [] };
  const other = await serveTiny(engine, {
    responses: Object.assign(new MemoryResponseStore({ maxBytes: 1, ttlMs: 1 }), {
      get: () => Promise.resolve(JSON.stringify(record)),
    }),
  });
  expect((await other.openai.responses.retrieve(id)).text).toBe(text);
  await expect(
    other.openai.responses.create({ model: 'tiny', input: 'x', previous_response_id: id }),
  ).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded' });
  await other.close();
});

test.each([
  ['cannot store', () => Promise.reject(new Error('ENOSPC: no space left on device'))],
  ['finds too large', () => Promise.resolve(false)],
])('a response that the store %s is sent with store: false', async (_name, put) => {
  const responses = new MemoryResponseStore({ maxBytes: 1, ttlMs: 1 });
  const other = await serveTiny(engine, { responses: Object.assign(responses, { put }) });
  const whole = await other.openai.responses.create({ model: 'tiny', input: 'Hi' });
  const streamed = await other.openai.responses.stream({ model: 'tiny', input: 'Hi' }).finalResponse();
  for (const response of [whole, streamed])
    expect(response).toMatchObject({ status: 'completed', output_text: HELLO, store: false });
  expect(log.warn.mock.calls.length + log.error.mock.calls.length).toBe(2);
  await other.close();
});

test('a stored text that is torn is a response that does not exist, and is deleted', async () => {
  const responses = new MemoryResponseStore({ maxBytes: 1000, ttlMs: 60_000 });
  const id = `resp_${'0'.repeat(48)}`;
  await responses.put('anyone', id, '{"response":{"id"');
  const other = await serveTiny(engine, { responses });
  await expect(other.openai.responses.retrieve(id)).rejects.toMatchObject({ status: 404, code: 'response_not_found' });
  expect(await responses.get('anyone', id)).toBeUndefined();
  await other.close();
});
