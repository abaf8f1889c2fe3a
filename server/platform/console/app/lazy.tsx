import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { type ApiProblem, toProblem } from '../api/problem';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { ProblemBanner, Skeleton } from '../ui/state';

/** A component whose code is loaded when it is first rendered. */
export function lazy<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let Loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [, setRound] = useState(0);
    const [problem, setProblem] = useState<ApiProblem | null>(null);
    const start = () => {
      setProblem(null);
      load().then(
        (component) => {
          Loaded = component;
          setRound((round) => round + 1);
        },
        (error: unknown) => setProblem(toProblem(error)),
      );
    };
    useEffect(() => {
      if (Loaded === undefined) start();
    }, []);
    if (Loaded !== undefined) return <Loaded {...props} />;
    if (problem === null) return <Skeleton />;
    return (
      <ProblemBanner problem={problem}>
        <div class="row">
          <Button isSmall icon="restart" onClick={start}>
            {t('action.retry')}
          </Button>
        </div>
      </ProblemBanner>
    );
  };
}
