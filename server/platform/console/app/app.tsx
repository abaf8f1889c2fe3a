import { useEffect, useState } from 'preact/hooks';
import { onLocale } from '../i18n';
import { findRoute } from '../router/match';
import { navigate, useLocation } from '../router/location';
import { SignInPage } from '../pages/sign-in';
import { Skeleton } from '../ui/state';
import { Toasts } from '../ui/toast';
import { OPEN_ROUTES, ROUTES } from './routes';
import { ReturnDialog } from './return-dialog';
import { loadSession, useSession } from './session';
import { Shell } from './shell';
import { NotFound, Unreachable } from './error-pages';

export function App() {
  const [, setRound] = useState(0);
  useEffect(() => onLocale(() => setRound((value) => value + 1)), []);
  return (
    <>
      <Content />
      <Toasts />
    </>
  );
}

function Content() {
  const { me, isLoaded, hasEnded, problem } = useSession();
  const { path } = useLocation();
  const isStart = path === '/' || (me !== null && path === '/sign-in');
  useEffect(() => {
    if (me !== null && isStart) navigate('/deployments', { replace: true });
  }, [me, isStart]);
  const open = findRoute(OPEN_ROUTES, path);
  if (open !== undefined && isLoaded) return <open.route.page key={path} {...open.params} />;
  if (problem !== null) return <Unreachable problem={problem} onRetry={() => void loadSession()} />;
  if (!isLoaded || (me !== null && isStart))
    return (
      <div class="gate">
        <div class="gate-box">
          <Skeleton />
        </div>
      </div>
    );
  if (me === null) return <SignInPage />;
  const found = findRoute(ROUTES, path);
  return (
    <>
      <Shell>
        {found === undefined ? (
          <NotFound />
        ) : (
          <found.route.page key={found.route.key?.(found.params) ?? found.route.path} {...found.params} />
        )}
      </Shell>
      {hasEnded && <ReturnDialog />}
    </>
  );
}
