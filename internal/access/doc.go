// Package access decides what callers of the API may do.
//
// A caller is a process on the unix socket, the holder of a token, or the owner of a client
// certificate. A policy gives each caller a role, and a route of the API states what it needs. The
// package does no I/O except for the names of users and groups, and keeps no state.
//
// Files:
//
//	role.go    roles, grants, and what a route needs
//	policy.go  from a caller to its grant
package access
