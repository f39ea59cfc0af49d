// Package migrate holds what the converters of other load balancers' configurations share.
//
// A converter reads a text and returns a Result: services in the form of services.d, addresses for
// a pool, and a note with file and line for everything that the result doesn't have. It opens no
// files but those that the text includes, and it never fails as a whole: what can't be converted is
// a note.
//
// Files:
//
//	result.go    Result, and the settings that go with the services
//	statement.go lines as words
//	object.go    YAML as objects, of Kubernetes' resources
//	listener.go  from what the other program listens on to services with names; values that converters read alike
package migrate
