'use strict';

const { default: Sequencer } = require('@jest/test-sequencer');

/** Files that take 10 s or more, longest first. */
const LONG = [
  'server/platform/console/flows',
  'server/access/access.test',
  'server/cli/cli.test',
  'server/platform/driver/hostile/resources',
  'server/platform/api/sign-in',
  'server/platform/control/loop',
  'server/platform/console/pages-',
  'models/service',
  'server/platform/control/controller',
  'server/platform/driver/process-driver',
  'server/platform/control/properties',
  'models/structured',
  'native/grammar-engine',
  'models/console',
  'ts/text/tool-call-formats',
  'server/inference/fuzz',
  'models/fuzz',
];

/** Starts the long files first. Jest knows how long a file takes only after its first run, and CI is a first run. */
module.exports = class LongestFirst extends Sequencer {
  sort(tests) {
    const rank = ({ path }) => {
      const index = LONG.findIndex((part) => path.includes(`/test/${part}`));
      return index < 0 ? LONG.length : index;
    };
    return super.sort(tests).sort((a, b) => rank(a) - rank(b));
  }
};
