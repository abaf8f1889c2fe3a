import { SseStream } from '../http/sse';
import { header, type HttpReply, type HttpRequest } from '../http/transport';
import { input, page } from './json-schema';
import { DeploymentEvent } from './objects';
import { cursorNumber, pagingByNumber } from './paging';
import { type ApiCall, type ApiRoute, defineRoute } from './route';

const TAG = 'events';
const SSE = { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 };
const GROUP = 100;
/** Other processes write events too. */
const LOOK_MS = 2_000;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/events',
    summary: 'What happened to a deployment, the newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingByNumber(15)),
    answers: { 200: page(DeploymentEvent) },
    handle: async ({ context: { store }, actor, params: { id }, query: { after, limit } }) => ({
      status: 200,
      body: await store.pageDeploymentEvents(actor, id, { beforeSeq: cursorNumber(after), limit }),
    }),
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/events/stream',
    summary: 'What happens to a deployment, as it happens; after Last-Event-ID, else from now on',
    tag: TAG,
    auth: 'any',
    answers: { 200: 'text/event-stream' },
    handle: async (call) => {
      const {
        context: { store },
        actor,
        params: { id },
        request,
      } = call;
      const newest = (await store.pageDeploymentEvents(actor, id, { limit: 1 })).data[0]?.seq ?? 0;
      return { stream: (reply) => followDeployment(call, lastEventId(request) ?? newest, reply) };
    },
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/events/stream',
    summary: 'Which of your deployments and containers something changed of, as it happens: look again',
    tag: TAG,
    auth: 'any',
    answers: { 200: 'text/event-stream' },
    handle: (call) => Promise.resolve({ stream: (reply) => followAll(call, reply) }),
  }),
];

function lastEventId(request: HttpRequest): number | undefined {
  const text = header(request, 'last-event-id');
  return text !== undefined && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

type Call = Pick<ApiCall, 'context' | 'actor' | 'params' | 'signal'>;

async function followDeployment(
  { context: { store, controller }, actor, params: { id }, signal }: Call,
  from: number,
  reply: HttpReply,
): Promise<void> {
  const sse = new SseStream(reply, {}, SSE);
  const bell = new Bell(signal);
  const unfollow = controller?.onChange((changed) => {
    if (changed === id) bell.ring();
  });
  sse.open();
  try {
    for (let after = from; !signal.aborted; await bell.rung(LOOK_MS)) {
      for (let isMore = true; isMore;) {
        // Whoever lost the right to see it hears no more.
        const events = await store.readDeploymentEvents(actor, id, after, GROUP);
        if (events.length > 0)
          await sse.sendEvents(events.map((event) => ({ id: event.seq, data: JSON.stringify(event) })));
        after = events.at(-1)?.seq ?? after;
        isMore = events.length === GROUP;
      }
    }
    sse.end();
  } catch {
    sse.destroy();
  } finally {
    unfollow?.();
  }
}

async function followAll({ context: { store, controller }, actor, signal }: Call, reply: HttpReply): Promise<void> {
  const sse = new SseStream(reply, {}, SSE);
  const bell = new Bell(signal);
  let changed = new Set<string>();
  const unfollow = controller?.onChange((id) => {
    changed.add(id);
    bell.ring();
  });
  const isSeen = (id: string) =>
    (id.startsWith('con_') ? store.getContainer(actor, id) : store.getDeployment(actor, id)).then(
      () => true,
      () => false,
    );
  sse.open();
  try {
    for (let number = 1; !signal.aborted; await bell.rung(SSE.pingIntervalMs)) {
      const ids = [...changed];
      changed = new Set();
      for (const id of ids)
        if (await isSeen(id))
          await sse.sendEvents([{ id: number++, data: JSON.stringify({ type: 'changed', target_id: id }) }]);
    }
    sse.end();
  } catch {
    sse.destroy();
  } finally {
    unfollow?.();
  }
}

/** Wakes a loop that looks for news. */
class Bell {
  readonly #signal: AbortSignal;
  #isRung = false;
  #wake: (() => void) | undefined;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    signal.addEventListener('abort', () => this.ring());
  }

  ring(): void {
    this.#isRung = true;
    this.#wake?.();
  }

  /** Since the last time; or the time is over, or the client gone. */
  async rung(withinMs: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    if (!this.#isRung && !this.#signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        timer = setTimeout(resolve, withinMs);
      });
    }
    clearTimeout(timer);
    this.#wake = undefined;
    this.#isRung = false;
  }
}
