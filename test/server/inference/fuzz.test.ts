/** Hostile requests to the server with the fake addon. test/fuzz/http.ts runs longer. */
import { tinyModel } from '../../fakes/tiny-model';
import { describeFuzzing } from '../../fuzz/suite';

describeFuzzing({ model: tinyModel, isFake: true }, 120);
