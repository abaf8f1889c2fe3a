import type { NativeEvent } from './addon-types';
import { CapstanError } from './errors';

/** A running call, as the addon's events reach it. */
export interface NativeCall {
  accept(event: NativeEvent): void;
  fail(error: CapstanError): void;
}

/** Running calls by the addon's request id. */
export type CallTable = Map<number, NativeCall>;

/** Distributes the events of one step. Events of calls that have ended are dropped. */
export function deliver(calls: CallTable, events: NativeEvent[]): void {
  for (const event of events) {
    const call = calls.get(event.id);
    try {
      call?.accept(event);
    } catch (error) {
      // The other calls must still get their events.
      call?.fail(CapstanError.from(error));
    }
  }
}
