/** The deployment service, as the command line of `capstan` loads it: the package `@capstan/service`. */
export { addServiceCommands } from './cli';
export { openRemoteKeys } from './cli/remote-keys';
