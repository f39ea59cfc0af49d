// Package command is the frame of the commands: the tree with the global flags, the client of the agent, the exit codes, and
// what several groups of commands do in the same way.
//
// A package of commands makes an App part of its own type, and returns cobra commands to package cli, which joins them. The
// frame knows no single command.
//
// Files:
//
//	app.go       the environment, the global flags, the client
//	command.go   the tree, groups, flags of several commands, waiting
//	exit.go      exit codes, errors and hints
//	key.go       names of services
//	input.go     files and stdin
//	show.go      answers to changes, plans and warnings
//	complete.go  completions of shells
package command
