// Package packages builds the packages of `make package` and tests them: their contents, and the scripts
// that dpkg and rpm run. It exports nothing. The tests have the build tag system.
package packages
