/** Hostile requests against the embedded model; test/fuzz/http.ts runs for longer. */
import { describeFuzzing } from '../fuzz/suite';

describeFuzzing({ model: () => 'demo', isFake: false }, 120);
