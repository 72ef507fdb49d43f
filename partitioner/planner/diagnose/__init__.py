"""Why nothing fits, and what another machine would gain; every change is planned before it is named."""
