/** Hostile requests against the product over the fake addon; test/fuzz/http.ts runs for longer. */
import { tinyModel } from '../fakes/tiny-model';
import { describeFuzzing } from '../fuzz/suite';

describeFuzzing({ model: tinyModel, isFake: true }, 120);
