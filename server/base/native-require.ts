/** For packages with native files. A bundler leaves these calls alone. */
export { requireNative, resolveNative } from '../../ts/package-root';
