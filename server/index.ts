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
  type TracerProvider,
} from './inference/handler';
