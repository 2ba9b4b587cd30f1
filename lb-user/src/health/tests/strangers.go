// A server over TLS as Go programs have them: every handshake that fails is a line of its log.
//
//	go run strangers.go CERTIFICATE KEY
package main

import (
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
)

func main() {
	certificate, err := tls.LoadX509KeyPair(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	answer := func(to http.ResponseWriter, request *http.Request) {
		fmt.Fprintln(to, "ok")
	}
	server := http.Server{
		Handler:   http.HandlerFunc(answer),
		ErrorLog:  log.New(os.Stderr, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
	}
	log.Fatal(server.ServeTLS(listener, "", ""))
}
