'use strict';

const { default: Sequencer } = require('@jest/test-sequencer');
const slowFiles = require('./slow-files');

/** Starts the slow files first. Jest knows how long a file takes only after its first run, and CI is a first run. */
module.exports = class LongestFirst extends Sequencer {
  sort(tests) {
    const rank = ({ path }) => {
      const index = slowFiles.findIndex((part) => path.includes(`/test/${part}`));
      return index < 0 ? slowFiles.length : index;
    };
    return super.sort(tests).sort((a, b) => rank(a) - rank(b));
  }
};
