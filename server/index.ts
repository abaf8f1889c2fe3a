/**
 * The inference server as a library.
 * @module capstan/server
 */
export {
  createHandler,
  createServer,
  type Handler,
  type HandlerOptions,
  type Server,
  type ServerOptions,
} from './inference/handler';
export { type TracerProvider } from './base/traces/api-sink';
