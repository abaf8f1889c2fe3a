/** For packages with native files. */
export { requireNative, resolveNative } from '../../ts/package-root';
