import { lazy } from '../app/lazy';

/** The log view and its virtual list are loaded when the first log is opened. */
export const LogView = lazy(async () => (await import('./log-view')).LogView);
