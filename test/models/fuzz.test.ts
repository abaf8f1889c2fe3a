/** Sends hostile requests to the demo model. test/fuzz/http.ts runs longer. */
import { describeFuzzing } from '../fuzz/suite';

describeFuzzing({ model: () => 'demo', isFake: false }, 120);
