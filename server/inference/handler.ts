import { Engine, type EngineOptions } from '../../ts';
import { type Closers, closeAll } from '../base/closers';
import { createLog } from '../base/log';
import type { TracerProvider } from '../base/traces/api-sink';
import { withTimeout } from '../base/with-timeout';
import { createTransport } from '../http/create-transport';
import { handleFetch } from '../http/fetch';
import { handleMessage, type NodeListener } from '../http/node';
import { openApp } from './open-app';
import { defaultServeOptions, type ServeOptions } from './serve-options';

export type { TracerProvider };

/** Options of {@link createHandler}. They mean the same as the flags of `capstan serve`. */
export interface HandlerOptions {
  /** GGUF file, model directory, name on the hub, or `demo` for the embedded model. Default: `demo`. */
  model?: string;
  /** Options of the engine that is loaded for `model`. */
  engineOptions?: EngineOptions;
  /** A loaded engine to use in place of `model`. `close` does not close it. */
  engine?: Engine;
  /** Names of the model in the API. Default: its name on the hub, or that of its directory. */
  servedModelNames?: readonly string[];
  /** Fixed access keys. With keys or a key database, requests need a key. */
  apiKeys?: readonly string[];
  /** Key database of `capstan keys`: a file or a `postgres://` URL. */
  keysDb?: string;
  /**
   * Folder of files, batches, stored responses and chat completions. It must not be that of another server. Without
   * it, responses and chat completions are stored in memory, and the routes of files and batches return 501. Default:
   * none.
   */
  dataDir?: string;
  /** Path prefix that is removed from paths, for example `/api/ai` if the handler is mounted there. */
  rootPath?: string;
  /**
   * Origins of web pages that may call the server. Default: all. Without keys, only listed origins reach stored
   * objects.
   */
  allowedOrigins?: readonly string[];
  /** Maximum size of a request body. Default: 32 MiB. */
  maxRequestBytes?: number;
  /**
   * Receives a span for each inference request, by the conventions of OpenTelemetry for generative AI. Needs the
   * package `@opentelemetry/api`. Default: a collector at `OTEL_EXPORTER_OTLP_ENDPOINT`, else no spans.
   */
  tracerProvider?: TracerProvider;
  /** Least severe level of the lines on standard error. Default: `'warn'`. */
  logLevel?: 'debug' | 'info' | 'warn' | 'error' | 'silent';
}

/** Options of {@link createServer}. */
export interface ServerOptions extends HandlerOptions {
  /** Default: `127.0.0.1`. */
  host?: string;
  /** 0 takes a free port. Default: 8080. */
  port?: number;
}

/** The OpenAI interface as a function, to mount in a web framework. */
export interface Handler {
  /** Responds to a `Request` of the fetch standard: Hono, Next.js and others. Never rejects. */
  (request: Request): Promise<Response>;
  /**
   * Responds to a request of node:http: `http.createServer(handler.node)`, Express, Fastify's `raw`. If the body was
   * read before, its text or its JSON value must be in the property `body`, where Express puts it. Never throws.
   */
  node: NodeListener;
  /** The engine that answers. */
  engine: Engine;
  /** Refuses new requests, waits for the open ones up to 30 s, and closes what this handler has opened. */
  close: () => Promise<void>;
}

/** A listening server. */
export interface Server {
  /** Address of the OpenAI interface without `/v1`, for example `http://127.0.0.1:8080`. */
  url: string;
  /** The engine that answers. */
  engine: Engine;
  /** As {@link Handler.close}. Stops listening first. */
  close: () => Promise<void>;
}

/**
 * Loads a model and returns its OpenAI-compatible API as a function.
 * @throws CapstanError as `Engine.load` does; AccessError for a key database that cannot be opened.
 */
export async function createHandler(options: HandlerOptions = {}): Promise<Handler> {
  const { app, engine, limits, close } = await open(options);
  const transport = { handler: app.handle.bind(app), ...limits };
  return Object.assign((request: Request) => handleFetch(request, transport), {
    node: ((request, response) => handleMessage(request, response, transport)) satisfies NodeListener,
    engine,
    close,
  });
}

/**
 * Loads a model and serves its OpenAI-compatible API, as `capstan serve` does, without handling signals.
 * @throws As {@link createHandler}, and an Error with a `code` such as `EADDRINUSE` if it cannot listen.
 */
export async function createServer(options: ServerOptions = {}): Promise<Server> {
  const { app, engine, limits, close, host, port } = await open(options);
  try {
    const transport = await createTransport('auto', { handler: app.handle.bind(app), ...limits });
    const address = host.includes(':') ? `[${host}]` : host;
    return {
      url: `http://${address}:${await transport.listen(host, port)}`,
      engine,
      close: async () => {
        transport.stopListening();
        await closeAll([() => transport.close(), close]);
      },
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Opens the application and loads its model. */
async function open(options: ServerOptions) {
  const serveOptions = toServeOptions(options);
  const { logLevel, apiKeys, model, maxRequestBytes, bodyTimeoutMs, shutdownTimeoutMs, host, port } = serveOptions;
  const opened = await openApp(serveOptions, createLog(logLevel, apiKeys));
  const { app } = opened;
  const closers: Closers = [() => opened.close()];
  let engine: Engine;
  try {
    if (options.engine !== undefined && typeof options.engine.chat !== 'function')
      throw new TypeError('engine: expected an Engine; options of the engine belong in engineOptions');
    engine = options.engine ?? (await Engine.load(model, serveOptions.engine));
    if (options.engine === undefined) closers.push(() => engine.close());
    opened.serve(engine);
  } catch (error) {
    await closeAll(closers);
    throw error;
  }
  const drainAndClose = async (): Promise<void> => {
    await withTimeout(shutdownTimeoutMs, app.drain());
    await closeAll(closers);
  };
  let closing: Promise<void> | undefined;
  const close = () => (closing ??= drainAndClose());
  return { app, engine, close, host, port, limits: { maxBodyBytes: maxRequestBytes, bodyTimeoutMs } };
}

function toServeOptions(options: ServerOptions): ServeOptions {
  const defaults = defaultServeOptions({});
  const { apiKeys = [], servedModelNames = [], allowedOrigins } = options;
  const cors =
    allowedOrigins === undefined
      ? defaults.cors
      : { ...defaults.cors, origins: [...allowedOrigins], overridden: new Set(['origins']) };
  return {
    ...defaults,
    model: options.model ?? defaults.model,
    engine: options.engineOptions ?? {},
    servedNames: [...servedModelNames],
    apiKeys: [...apiKeys],
    keysDb: options.keysDb,
    dataDir: options.dataDir,
    rootPath: options.rootPath ?? '',
    cors,
    maxRequestBytes: options.maxRequestBytes ?? defaults.maxRequestBytes,
    logLevel: options.logLevel ?? 'warn',
    logsRequests: false,
    traces: { ...defaults.traces, provider: options.tracerProvider },
    host: options.host ?? defaults.host,
    port: options.port ?? defaults.port,
  };
}
