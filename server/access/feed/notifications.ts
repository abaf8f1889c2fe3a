import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import type { DatabaseLocation } from '../store/location';

/** PostgreSQL channel that carries the revision of each change. */
export const CHANGES_CHANNEL = 'capstan_changes';

const RECONNECT_MS = 5_000;
const CONNECT_TIMEOUT_MS = 5_000;
/** Least time between two calls of the listener of a file. */
const FILE_GAP_MS = 50;

/** Calls `onChange` when another process may have committed a change. Changes may be missed, so callers also poll. */
export interface ChangeListener {
  close(): Promise<void>;
}

/**
 * Listens to PostgreSQL. Reconnects after a failure, and then calls `onChange` once because notifications may have been
 * missed.
 */
class PostgresListener implements ChangeListener {
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

/**
 * Watches the file of a database and its log. SQLite has no notifications, but every commit writes to one of them, also
 * a commit of this process. Without support of the system or the file system, nothing is reported.
 */
class FileListener implements ChangeListener {
  readonly #watcher: fs.FSWatcher | undefined;
  readonly #onChange: () => void;
  #timer: NodeJS.Timeout | undefined;
  #isDue = false;

  constructor(file: string, onChange: () => void) {
    this.#onChange = onChange;
    const names: (string | null)[] = [path.basename(file), `${path.basename(file)}-wal`, null];
    try {
      // Watches the folder, because the files may be replaced.
      this.#watcher = fs.watch(path.dirname(file), { persistent: false }, (_event, name) => {
        if (names.includes(name)) this.#changed();
      });
      this.#watcher.on('error', () => this.#watcher?.close());
    } catch {
      // The system watches no more files.
    }
  }

  close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#watcher?.close();
    return Promise.resolve();
  }

  /** Calls the listener now, and once more at the end of the gap if there are changes meanwhile. */
  #changed(): void {
    if (this.#timer !== undefined) {
      this.#isDue = true;
      return;
    }
    this.#isDue = false;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (this.#isDue) this.#changed();
    }, FILE_GAP_MS).unref();
    this.#onChange();
  }
}

/** Listens to an open database. */
export function listen(location: DatabaseLocation, onChange: () => void): ChangeListener {
  return location.kind === 'postgres'
    ? new PostgresListener(location.url, onChange)
    : new FileListener(location.file, onChange);
}
