import type { NativeEvent } from '../../ts/addon-types';
import { readEvents } from '../../ts/event-batch';
import { sendEvents } from '../fakes/fake-addon';

const FINISH = { reason: 'stop' } as unknown as NativeEvent['finish'];
const LOGPROBS = [{ tokenId: 5 }] as unknown as NativeEvent['logprobs'];

function event(id: number, textDelta: string, tokenIds: number[], more: Partial<NativeEvent> = {}): NativeEvent {
  return {
    id,
    index: 0,
    textDelta,
    tokenIds,
    logprobs: null,
    promptLogprobs: null,
    pooled: null,
    finish: null,
    ...more,
  };
}

function roundTrip(events: NativeEvent[]): NativeEvent[] {
  let read: NativeEvent[] = [];
  sendEvents((...batch) => (read = readEvents(...batch)), events);
  return read;
}

test('events of a batch keep their order, text, tokens and details', () => {
  const events = [
    event(1, 'plain', [1, 2, 3]),
    event(2, '', []),
    event(1, '🙂 é', [70_000], { index: 3, logprobs: LOGPROBS }),
    event(3, 'x', [2 ** 31 - 1]),
    event(5, '', [], { finish: FINISH, pooled: Float32Array.of(1, 2) }),
    event(4, '', [9], { finish: FINISH, promptLogprobs: [null] }),
  ];
  expect(roundTrip(events)).toEqual(events);
});

test('request ids above 32 bits are exact', () => {
  for (const id of [2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 40 + 3])
    expect(roundTrip([event(id, 'a', [1])])[0].id).toBe(id);
});

test('an empty batch has no events', () => {
  expect(roundTrip([])).toEqual([]);
});
