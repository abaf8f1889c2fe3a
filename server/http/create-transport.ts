import type { Transport, TransportOptions } from './transport';

/**
 * Creates the transport of a name. `auto` is uWebSockets.js if a current release loads here, otherwise node:http.
 * Throws an Error if `uws` is required and its binary does not load.
 */
export async function createTransport(name: 'auto' | 'uws' | 'node', options: TransportOptions): Promise<Transport> {
  // Each transport is imported only when it is used, because loading both slows the start.
  if (name !== 'node') {
    const { loadUws } = await import('./uws-module.js');
    const uws = loadUws({ isForced: name === 'uws' });
    if (uws !== undefined) {
      const { UwsTransport } = await import('./uws.js');
      return new UwsTransport(uws, options);
    }
  }
  if (name === 'uws')
    throw new Error(
      `uWebSockets.js has no binary for ${process.platform}-${process.arch} with Node ${process.version}. Use --http-transport node.`,
    );
  const { NodeTransport } = await import('./node.js');
  return new NodeTransport(options);
}
