import { header, type HttpReply, type HttpRequest, SseStream } from 'capstan/internal';
import { addFollower } from '../followers';
import { input, page } from '../json-schema';
import { DeploymentEvent } from '../objects';
import { cursorNumber, pagingByNumber } from '../paging';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'events';
const SSE = { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 };
const GROUP = 100;
/** Poll interval for events that other processes write. */
const POLL_INTERVAL_MS = 2_000;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/events',
    summary: 'List the events of a deployment, newest first',
    tag: TAG,
    auth: 'any',
    query: input(pagingByNumber(15)),
    responses: { 200: page(DeploymentEvent) },
    handle: async ({ context: { store }, actor, params: { id }, query: { after, limit } }) => ({
      status: 200,
      body: await store.pageDeploymentEvents(actor, id, { beforeSeq: cursorNumber(after), limit }),
    }),
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/events/stream',
    summary: 'Stream the events of a deployment, from Last-Event-ID or from now on',
    tag: TAG,
    auth: 'any',
    responses: { 200: 'text/event-stream' },
    problems: ['too_many_attempts'],
    handle: async (call) => {
      const {
        context: { store },
        actor,
        params: { id },
        request,
      } = call;
      const newest = (await store.pageDeploymentEvents(actor, id, { limit: 1 })).data[0]?.seq ?? 0;
      const removeFollower = addFollower(actor.userId);
      return {
        stream: (reply) => followDeployment(call, lastEventId(request) ?? newest, reply).finally(removeFollower),
      };
    },
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/events/stream',
    summary: 'Stream the ids of your deployments and containers that changed',
    tag: TAG,
    auth: 'any',
    responses: { 200: 'text/event-stream' },
    problems: ['too_many_attempts'],
    handle: (call) => {
      const removeFollower = addFollower(call.actor.userId);
      return Promise.resolve({ stream: (reply) => followAll(call, reply).finally(removeFollower) });
    },
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
  const changes = new ChangeSignal(signal);
  const unsubscribe = controller?.onChange((changed) => {
    if (changed === id) changes.notify();
  });
  sse.open();
  try {
    for (let after = from; !signal.aborted; await changes.wait(POLL_INTERVAL_MS)) {
      for (let isMore = true; isMore;) {
        // Throws once the caller has lost access, which ends the stream.
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
    unsubscribe?.();
  }
}

async function followAll({ context: { store, controller }, actor, signal }: Call, reply: HttpReply): Promise<void> {
  const sse = new SseStream(reply, {}, SSE);
  const changes = new ChangeSignal(signal);
  let changed = new Set<string>();
  const unsubscribe = controller?.onChange((id) => {
    changed.add(id);
    changes.notify();
  });
  const isVisible = (id: string) =>
    (id.startsWith('con_') ? store.getContainer(actor, id) : store.getDeployment(actor, id)).then(
      () => true,
      () => false,
    );
  sse.open();
  try {
    for (let number = 1; !signal.aborted; await changes.wait(SSE.pingIntervalMs)) {
      const ids = [...changed];
      changed = new Set();
      for (const id of ids)
        if (await isVisible(id))
          await sse.sendEvents([{ id: number++, data: JSON.stringify({ type: 'changed', target_id: id }) }]);
    }
    sse.end();
  } catch {
    sse.destroy();
  } finally {
    unsubscribe?.();
  }
}

/** Wakes a polling loop early when something has changed. */
class ChangeSignal {
  readonly #signal: AbortSignal;
  #isNotified = false;
  #wake: (() => void) | undefined;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    signal.addEventListener('abort', () => this.notify());
  }

  notify(): void {
    this.#isNotified = true;
    this.#wake?.();
  }

  /** Resolves after a change since the last call, after `timeoutMs`, or when the client disconnects. */
  async wait(timeoutMs: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    if (!this.#isNotified && !this.#signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        timer = setTimeout(resolve, timeoutMs);
      });
    }
    clearTimeout(timer);
    this.#wake = undefined;
    this.#isNotified = false;
  }
}
