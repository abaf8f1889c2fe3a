import type { Engine } from '../../../ts';

/** Returns a proxy of the engine with other methods in place of some. */
export function wrapEngine(engine: Engine, replaced: Partial<Engine>): Engine {
  const methods = new Map<PropertyKey, unknown>(Object.entries(replaced));
  return new Proxy(engine, {
    get(target, name) {
      const method = methods.get(name);
      if (method !== undefined) return method;
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== 'function') return value;
      // NOTE: bound to the engine, because the proxy has no access to private fields.
      const bound: unknown = (value as (...args: unknown[]) => unknown).bind(target);
      methods.set(name, bound);
      return bound;
    },
  });
}
