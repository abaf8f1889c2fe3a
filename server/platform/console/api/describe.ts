import { lookUp, serviceText, t } from '../i18n/texts';
import { type ApiProblem, detailOf } from './problem';

/** The title of a problem and the detail from the service, in the language of the page. */
export function describeProblem(problem: ApiProblem): { title: string; detail: string } {
  const { code, status, message, retryAfterS } = problem;
  if (status === 0) return { title: t('problem.unreachable'), detail: t('problem.unreachableHint') };
  if (status === 412) return { title: t('problem.changed'), detail: t('problem.changedHint') };
  if (status === 429)
    return {
      title: t('problem.tooMany'),
      detail: retryAfterS === null ? serviceText(message) : t('problem.retryAfter', { n: retryAfterS }),
    };
  const title = lookUp(`problem.code.${code}`) ?? (status >= 500 ? t('problem.server') : t('problem.refused'));
  return { title, detail: serviceText(detailOf(problem)) };
}
