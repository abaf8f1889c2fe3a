import { ClientTooSlow, SseStream } from '../../../server/http/sse';
import type { HttpReply, ReplyStream } from '../../../server/http/transport';

class FakeReply implements HttpReply, ReplyStream {
  hasStarted = false;
  text = '';
  isBehind = false;
  state = 'open';
  headers: Readonly<Record<string, string>> = {};
  wake = (): void => {};

  send(): void {}
  stream(_status: number, headers: Readonly<Record<string, string>>): ReplyStream {
    this.headers = headers;
    return this;
  }
  write(text: string): boolean {
    this.text += text;
    return !this.isBehind;
  }
  drained(): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
    });
  }
  end(): void {
    this.state = 'ended';
  }
  destroy(): void {
    this.state = 'destroyed';
  }
}

const options = { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 };

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

test('sends events as data lines and ends with the terminator', async () => {
  const reply = new FakeReply();
  const sse = new SseStream(reply, { 'X-Request-Id': 'r' }, options);
  await sse.send('{"a":1}');
  await sse.send('1', '2');
  await sse.finish();
  expect(reply.text).toBe('data: {"a":1}\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n');
  expect(reply.state).toBe('ended');
  expect(reply.headers).toEqual({
    'Content-Type': 'text/event-stream; charset=utf-8',
    'Cache-Control': 'no-cache',
    'X-Accel-Buffering': 'no',
    'X-Request-Id': 'r',
  });
});

test('sends comments only while there are no events', async () => {
  const reply = new FakeReply();
  const sse = new SseStream(reply, {}, options);
  jest.advanceTimersByTime(15_000);
  expect(reply.text).toBe(':\n\n');
  jest.advanceTimersByTime(14_000);
  await sse.send('x');
  jest.advanceTimersByTime(1000);
  expect(reply.text).toBe(':\n\ndata: x\n\n');
  jest.advanceTimersByTime(15_000);
  expect(reply.text).toBe(':\n\ndata: x\n\n:\n\n');
  await sse.finish();
  jest.advanceTimersByTime(60_000);
  expect(reply.text).toMatch(/\[DONE\]\n\n$/);
});

test('send waits for a slow client', async () => {
  const reply = new FakeReply();
  const sse = new SseStream(reply, {}, options);
  reply.isBehind = true;
  let isSent = false;
  const sending = sse.send('x').then(() => {
    isSent = true;
  });
  await Promise.resolve();
  expect(isSent).toBe(false);
  reply.wake();
  await sending;
  expect(jest.getTimerCount()).toBe(1);
  sse.destroy();
  expect(jest.getTimerCount()).toBe(0);
});

test('rejects with ClientTooSlow if the client stops reading', async () => {
  const reply = new FakeReply();
  const sse = new SseStream(reply, {}, options);
  reply.isBehind = true;
  const sending = expect(sse.send('x')).rejects.toThrow(ClientTooSlow);
  jest.advanceTimersByTime(60_000);
  await sending;
});
