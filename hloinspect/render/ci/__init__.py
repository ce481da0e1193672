"""Results for CI: JUnit, SARIF, GitHub, Markdown."""
