import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import type { DatabaseLocation } from '../store/location';

/** PostgreSQL channel that carries the revision of each change. */
export const CHANGES_CHANNEL = 'capstan_changes';

const RECONNECT_MS = 5_000;
const CONNECT_TIMEOUT_MS = 5_000;

/**
 * Calls `onChange` when another process commits a change. Notifications may be lost, so callers also poll. Reconnects
 * after a failure, and then calls `onChange` once because notifications may have been missed.
 */
export class ChangeListener {
  readonly #stop = new AbortController();
  readonly #running: Promise<void>;
  #client: pg.Client | undefined;

  constructor(connectionString: string, onChange: () => void) {
    this.#running = this.#run(connectionString, onChange);
  }

  async close(): Promise<void> {
    this.#stop.abort();
    await this.#client?.end().catch(() => {});
    await this.#running;
  }

  async #run(connectionString: string, onChange: () => void): Promise<void> {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await this.#listen(connectionString, onChange).catch(() => {});
      if (!signal.aborted) await sleep(RECONNECT_MS, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  /** Resolves when the connection ends. */
  async #listen(connectionString: string, onChange: () => void): Promise<void> {
    const client = new pg.Client({
      connectionString,
      connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
      keepAlive: true,
      application_name: 'capstan feed',
    });
    const ended = new Promise<void>((resolve) => {
      client.on('end', resolve);
      client.on('error', () => resolve());
    });
    client.on('notification', onChange);
    this.#client = client;
    try {
      await client.connect();
      await client.query(`listen ${CHANGES_CHANNEL}`);
      onChange();
      if (!this.#stop.signal.aborted) await ended;
    } finally {
      await client.end().catch(() => {});
    }
  }
}

/** Returns undefined for a file: SQLite has no notifications. */
export function listen(location: DatabaseLocation, onChange: () => void): ChangeListener | undefined {
  return location.kind === 'postgres' ? new ChangeListener(location.url, onChange) : undefined;
}
