// Runs before the first paint, so that the other theme does not flash. The policy forbids inline scripts.
(function () {
  try {
    var theme = localStorage.getItem('capstan.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch (error) {
    // Storage may be blocked. The theme of the system applies then.
  }
})();
