// Before the first paint, so that nobody sees a flash of the other theme. A file of its own: the policy forbids scripts within the page.
(function () {
  try {
    var theme = localStorage.getItem('capstan.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
  } catch (error) {
    // Storage may be forbidden; then the system's theme it is.
  }
})();
